"""bandwidth: limits the traffic that a pod receives and sends."""
