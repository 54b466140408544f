"""The application: composition from gin files, commands, runs, the command line and the display."""
