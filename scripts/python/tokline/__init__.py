"""What Tokline's records say: reading them, comparing them, showing them."""
