"""`lab grade`: a class of submissions, scored. Start reading at command.py."""
