"""What is watched for: alerts as one table, and the files of Prometheus that are made from it."""
