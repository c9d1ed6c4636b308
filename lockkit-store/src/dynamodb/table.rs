//! The table: what is refused, what is worth a remark, and how it is made.

use aws_sdk_dynamodb::types::{
    KeyType, MultiRegionConsistency, ScalarAttributeType, TableDescription, TableStatus,
    TimeToLiveDescription, TimeToLiveStatus,
};
use lockkit_core::state::{Finding, Severity};
use lockkit_core::{Error, Result};

use super::{BACKEND, DynamoStore};
use crate::service_url::ServiceUrl;

/// The actions of a client.
const ACTIONS: [&str; 6] =
    ["DescribeTable", "DescribeTimeToLive", "GetItem", "PutItem", "DeleteItem", "Query"];

/// Checks the table, which a client of locks does not create.
pub(super) async fn examine(store: &DynamoStore) -> Result<Vec<Finding>> {
    let name = &store.url.name;
    let described = store.client.describe_table().table_name(name).send().await;
    let described =
        described.map_err(|error| store.error_of(&error, "DescribeTable").into_error(BACKEND))?;
    let Some(table) = described.table else {
        return Err(Error::retryable(BACKEND, format!("the table {name} is described by nothing")));
    };
    let ttl = store.client.describe_time_to_live().table_name(name).send().await;
    let ttl =
        ttl.map_err(|error| store.error_of(&error, "DescribeTimeToLive").into_error(BACKEND))?;
    if table.table_status() == Some(&TableStatus::Creating) {
        return Err(Error::retryable(BACKEND, format!("the table {name} is being created")));
    }
    if let Some(wrong) = refusal(&table, ttl.time_to_live_description(), name) {
        return Err(Error::permanent(BACKEND, format!("the table {name} {wrong}")));
    }
    let unprotected = table.deletion_protection_enabled() != Some(true);
    let finding = unprotected.then(|| {
        let advice = format!(
            "against that: aws dynamodb update-table --table-name {name} --deletion-protection-enabled"
        );
        Finding::new(Severity::Note, format!("the table {name} can be deleted"), advice)
    });
    Ok(finding.into_iter().collect())
}

/// What is wrong with this table, and what to do.
fn refusal(
    table: &TableDescription,
    ttl: Option<&TimeToLiveDescription>,
    name: &str,
) -> Option<String> {
    if let Some(status @ (TableStatus::Deleting | TableStatus::InaccessibleEncryptionCredentials)) =
        table.table_status()
    {
        return Some(format!("cannot be used, its status is {status}"));
    }
    let is_text = |name: &str| {
        table.attribute_definitions().iter().any(|attribute| {
            attribute.attribute_name() == name
                && *attribute.attribute_type() == ScalarAttributeType::S
        })
    };
    let keys = table.key_schema().iter().map(|key| (key.attribute_name(), key.key_type()));
    let keys: Vec<_> = keys.collect();
    if keys != [("p", &KeyType::Hash), ("k", &KeyType::Range)] || !is_text("p") || !is_text("k") {
        return Some(
            "has other keys than lockkit's, p and k, both texts: name another one; `lockkit schema` prints \
             the command that creates it"
                .to_owned(),
        );
    }
    let is_global = !table.replicas().is_empty() || table.global_table_version().is_some();
    if is_global && table.multi_region_consistency() != Some(&MultiRegionConsistency::Strong) {
        return Some(
            "is replicated between regions by the last write, so two clients can hold one lock: name a table \
             of one region, or a global table with multi-Region strong consistency"
                .to_owned(),
        );
    }
    let ttl = ttl.filter(|ttl| {
        matches!(
            ttl.time_to_live_status(),
            Some(TimeToLiveStatus::Enabled | TimeToLiveStatus::Enabling)
        )
    })?;
    let attribute = ttl.attribute_name().unwrap_or("ATTRIBUTE");
    Some(format!(
        "deletes items by their time to live: aws dynamodb update-time-to-live --table-name {name} \
         --time-to-live-specification Enabled=false,AttributeName={attribute}"
    ))
}

/// What makes the table, in two ways, and the least rights of its users.
pub(super) fn schema(url: &ServiceUrl) -> String {
    let (table, region) = (&url.name, url.own("region"));
    let option = region.map(|region| format!(" --region {region}")).unwrap_or_default();
    let region = region.unwrap_or("*");
    let actions = ACTIONS.map(|it| format!("\"dynamodb:{it}\"")).join(", ");
    format!(
        "# The table; what it costs follows from its use.\n\
         aws dynamodb create-table{option} --table-name {table} \\\n  \
           --attribute-definitions AttributeName=p,AttributeType=S AttributeName=k,AttributeType=S \\\n  \
           --key-schema AttributeName=p,KeyType=HASH AttributeName=k,KeyType=RANGE \\\n  \
           --billing-mode PAY_PER_REQUEST --deletion-protection-enabled\n\
         \n\
         # Or the same as a template of CloudFormation.\n\
         Resources:\n  \
           Locks:\n    \
             Type: AWS::DynamoDB::Table\n    \
             DeletionPolicy: Retain\n    \
             UpdateReplacePolicy: Retain\n    \
             Properties:\n      \
               TableName: {table}\n      \
               BillingMode: PAY_PER_REQUEST\n      \
               DeletionProtectionEnabled: true\n      \
               AttributeDefinitions:\n        \
                 - {{ AttributeName: p, AttributeType: S }}\n        \
                 - {{ AttributeName: k, AttributeType: S }}\n      \
               KeySchema:\n        \
                 - {{ AttributeName: p, KeyType: HASH }}\n        \
                 - {{ AttributeName: k, KeyType: RANGE }}\n\
         \n\
         # What a client of locks may do, and no more, as a policy of IAM.\n\
         {{\n  \
           \"Version\": \"2012-10-17\",\n  \
           \"Statement\": [{{\n    \
             \"Effect\": \"Allow\",\n    \
             \"Action\": [{actions}],\n    \
             \"Resource\": \"arn:aws:dynamodb:{region}:*:table/{table}\"\n  \
           }}]\n\
         }}\n"
    )
}
