"""Layer 2: what shows a run: terminal, TensorBoard, W&B, pictures, videos."""
