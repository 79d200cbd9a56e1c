"""Running rank processes and knowing the machine they run on."""
