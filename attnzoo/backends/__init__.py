"""One file a backend. Backends never import each other; what they share is in `attnzoo.kernels`."""
