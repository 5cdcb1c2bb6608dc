"""vrf: puts the pod's interface into a VRF device of the pod."""
