"""Click definitions of the commands. They stay light: a command imports its action when it runs."""
