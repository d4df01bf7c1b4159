"""Helpers that several tools share. Nothing here imports a tool."""
