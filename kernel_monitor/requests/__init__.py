"""What pages ask for, answered: requests on the control channel in, replies out. Begin with `control`."""
