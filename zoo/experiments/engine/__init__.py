"""What runs any experiment: declaration, records, runner, tables."""
