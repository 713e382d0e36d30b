"""What a bare machine with a GPU lacks, in parcels: packed here, unpacked there."""
