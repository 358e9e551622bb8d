"""Tables: raw events and catalogues to validated rows, histories, features and splits."""
