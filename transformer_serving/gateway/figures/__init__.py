"""What is counted of requests, and the page that shows it."""
