"""What can be typed. These modules are light: what a command does is imported when it runs."""
