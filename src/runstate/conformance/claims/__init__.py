"""What every log promises, one module for each part of the port, one test for each claim."""
