"""Row operations: softmax, norms."""
