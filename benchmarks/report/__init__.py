"""What is told of stored runs: tables, verdicts on the budgets, pictures."""
