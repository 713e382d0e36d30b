"""What a bundle's files say before they are loaded, and why they are refused."""
