"""`lab live`: a page on which a person chooses what happens next. Start at command.py."""
