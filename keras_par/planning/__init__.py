"""`keras-par plan`: what each rank of a job would hold and send, found in one process without starting the job."""
