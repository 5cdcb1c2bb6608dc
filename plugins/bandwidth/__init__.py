"""bandwidth: limits to what a pod receives and sends."""
