"""The serving configuration: surfaces, rules and experiments, read from one TOML file."""
