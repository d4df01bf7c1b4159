"""Helpers that several tools share. Modules here import no tool."""
