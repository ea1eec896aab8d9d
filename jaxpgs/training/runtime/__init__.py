"""What all trainers share: iterations, checkpoints, loggers, devices."""
