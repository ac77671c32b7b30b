"""From the store to the pages of this kernel: wire format, hub, control channel, rendering processes.

Imports nothing: who renders a recorded session starts that process before it imports anything large itself.
"""
