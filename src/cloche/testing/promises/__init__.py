"""The promises, one module for each topic of the contract."""
