"""Steps in micro-batches: cut a step into gradients and update, and join the two compiled parts."""
