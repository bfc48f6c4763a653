"""The command line: main (exit codes), one file a command, and what the commands share. Only this package prints."""
