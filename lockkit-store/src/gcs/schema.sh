# The bucket, and a role with the least rights in it. PROJECT and REGION are yours, and MEMBER is who takes
# locks, such as serviceAccount:NAME@PROJECT.iam.gserviceaccount.com. Without --soft-delete-duration=0, each
# change of a lock leaves an old object that is paid for.
gcloud storage buckets create gs://{bucket} --location=REGION --uniform-bucket-level-access \
  --public-access-prevention --soft-delete-duration=0
gcloud iam roles create lockkit --project=PROJECT --title="lockkit locks" \
  --permissions=storage.objects.create,storage.objects.delete,storage.objects.get,storage.objects.list
gcloud storage buckets add-iam-policy-binding gs://{bucket} --member=MEMBER --role=projects/PROJECT/roles/lockkit
