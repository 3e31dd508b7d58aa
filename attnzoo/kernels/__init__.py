"""What computes a rule: fused softmax, block gathering, chunked sums. Shared by the backends, one file a kernel."""
