"""What the parts of the grader pass to each other: the rubric, results, and where results are kept."""
