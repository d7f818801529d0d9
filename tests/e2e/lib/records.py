"""Records of cluster state as they are stored, and the APIs of identities by which some are changed."""

import re

import boto3
from botocore.client import Config

# The last field of a record: with a MAC, or with a proof that all processes verify.
SIGNATURE = re.compile(rb',"signed":"(?:[0-9a-f.]{115}|[0-9a-f.]{179})"}\n?$')


def query_api(cluster, service, access, secret, token=None):
    """A client of IAM or STS that tries once."""
    return boto3.client(
        service,
        endpoint_url=cluster.credentials()["endpoint"],
        region_name="us-east-1",
        aws_access_key_id=access,
        aws_secret_access_key=secret,
        aws_session_token=token,
        config=Config(retries={"total_max_attempts": 1}),
    )
