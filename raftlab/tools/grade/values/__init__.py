"""The grader's data: the rubric, results, and the store of runs."""
