"""What the commands of the console do."""
