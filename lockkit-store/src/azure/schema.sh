# The container, and a role with the least rights in it. PRINCIPAL is the object id of the identity that takes
# locks, SUBSCRIPTION and GROUP are where the account is.
az storage container create --account-name {account} --name {container} --auth-mode login
az role definition create --role-definition '{
  "Name": "lockkit locks",
  "Description": "Reads, writes, lists and deletes blobs",
  "AssignableScopes": ["/subscriptions/SUBSCRIPTION"],
  "Actions": [],
  "DataActions": [
    "Microsoft.Storage/storageAccounts/blobServices/containers/blobs/read",
    "Microsoft.Storage/storageAccounts/blobServices/containers/blobs/write",
    "Microsoft.Storage/storageAccounts/blobServices/containers/blobs/delete"
  ]
}'
az role assignment create --role "lockkit locks" --assignee PRINCIPAL \
  --scope "/subscriptions/SUBSCRIPTION/resourceGroups/GROUP/providers/Microsoft.Storage/storageAccounts/{account}/blobServices/default/containers/{container}"
# Where the account keeps deleted blobs or old versions, each change of a lock leaves one that is paid for:
# an account of its own, without, costs less.
