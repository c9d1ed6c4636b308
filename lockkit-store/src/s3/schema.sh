# The bucket, and a policy with the least rights in it, for the users or roles that take locks. Leave
# versioning off: with it, each change of a lock leaves an old object that is paid for.
aws s3 mb s3://{bucket} --region {region}
aws iam create-policy --policy-name lockkit-locks --policy-document '{
  "Version": "2012-10-17",
  "Statement": [
    {
      "Effect": "Allow",
      "Action": ["s3:GetObject", "s3:PutObject", "s3:DeleteObject"],
      "Resource": "arn:aws:s3:::{bucket}/{keys}"
    },
    {
      "Effect": "Allow",
      "Action": "s3:ListBucket",
      "Resource": "arn:aws:s3:::{bucket}"
    }
  ]
}'
