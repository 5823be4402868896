MemcpyHtoD,0x00007f0cb0000010,8192
MemcpyHtoD,0x00007f0cb0200000,1048576
kernel-1.traceg
MemcpyDtoH,0x00007f0cb0200000,4096
kernel-2.traceg
