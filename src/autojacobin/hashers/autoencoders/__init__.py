"""The auto-encoders: those of the paper, and the binary auto-encoder, whose codes are searched."""
