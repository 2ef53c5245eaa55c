"""What a model costs, counted from its blueprint: parameters and memory."""
