"""The engine on devices: a stand-in that runs on the CPU, and CUDA where there is one."""
