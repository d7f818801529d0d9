//! The names of actions and condition keys that AWS documents: "Actions, resources, and condition keys for AWS
//! services", and "AWS global condition context keys". Read on 2026-11-28.

/// Actions of S3.
#[rustfmt::skip]
pub(super) const S3_ACTIONS: &[&str] = &[
    "AbortMultipartUpload", "AssociateAccessGrantsIdentityCenter", "BypassGovernanceRetention",
    "CreateAccessGrant", "CreateAccessGrantsInstance", "CreateAccessGrantsLocation", "CreateAccessPoint",
    "CreateAccessPointForObjectLambda", "CreateBucket", "CreateBucketMetadataTableConfiguration", "CreateJob",
    "CreateMultiRegionAccessPoint", "CreateStorageLensGroup", "DeleteAccessGrant", "DeleteAccessGrantsInstance",
    "DeleteAccessGrantsInstanceResourcePolicy", "DeleteAccessGrantsLocation", "DeleteAccessPoint",
    "DeleteAccessPointForObjectLambda", "DeleteAccessPointPolicy", "DeleteAccessPointPolicyForObjectLambda",
    "DeleteBucket", "DeleteBucketMetadataTableConfiguration", "DeleteBucketPolicy", "DeleteBucketWebsite",
    "DeleteJobTagging", "DeleteMultiRegionAccessPoint", "DeleteObject", "DeleteObjectTagging",
    "DeleteObjectVersion", "DeleteObjectVersionTagging", "DeleteStorageLensConfiguration",
    "DeleteStorageLensConfigurationTagging", "DeleteStorageLensGroup", "DescribeJob",
    "DescribeMultiRegionAccessPointOperation", "DissociateAccessGrantsIdentityCenter",
    "GetAccelerateConfiguration", "GetAccessGrant", "GetAccessGrantsInstance",
    "GetAccessGrantsInstanceForPrefix", "GetAccessGrantsInstanceResourcePolicy", "GetAccessGrantsLocation",
    "GetAccessPoint", "GetAccessPointConfigurationForObjectLambda", "GetAccessPointForObjectLambda",
    "GetAccessPointPolicy", "GetAccessPointPolicyForObjectLambda", "GetAccessPointPolicyStatus",
    "GetAccessPointPolicyStatusForObjectLambda", "GetAccountPublicAccessBlock", "GetAnalyticsConfiguration",
    "GetBucketAbac", "GetBucketAcl", "GetBucketCORS", "GetBucketLocation", "GetBucketLogging",
    "GetBucketMetadataTableConfiguration", "GetBucketNotification", "GetBucketObjectLockConfiguration",
    "GetBucketOwnershipControls", "GetBucketPolicy", "GetBucketPolicyStatus", "GetBucketPublicAccessBlock",
    "GetBucketRequestPayment", "GetBucketTagging", "GetBucketVersioning", "GetBucketWebsite", "GetDataAccess",
    "GetEncryptionConfiguration", "GetIntelligentTieringConfiguration", "GetInventoryConfiguration",
    "GetJobTagging", "GetLifecycleConfiguration", "GetMetricsConfiguration", "GetMultiRegionAccessPoint",
    "GetMultiRegionAccessPointPolicy", "GetMultiRegionAccessPointPolicyStatus",
    "GetMultiRegionAccessPointRoutes", "GetObject", "GetObjectAcl", "GetObjectAttributes", "GetObjectLegalHold",
    "GetObjectRetention", "GetObjectTagging", "GetObjectTorrent", "GetObjectVersion", "GetObjectVersionAcl",
    "GetObjectVersionAttributes", "GetObjectVersionForReplication", "GetObjectVersionTagging",
    "GetObjectVersionTorrent", "GetReplicationConfiguration", "GetStorageLensConfiguration",
    "GetStorageLensConfigurationTagging", "GetStorageLensDashboard", "GetStorageLensGroup",
    "InitiateReplication", "ListAccessGrants", "ListAccessGrantsInstances", "ListAccessGrantsLocations",
    "ListAccessPoints", "ListAccessPointsForObjectLambda", "ListAllMyBuckets", "ListBucket",
    "ListBucketMultipartUploads", "ListBucketVersions", "ListCallerAccessGrants", "ListJobs",
    "ListMultiRegionAccessPoints", "ListMultipartUploadParts", "ListStorageLensConfigurations",
    "ListStorageLensGroups", "ListTagsForResource", "ObjectOwnerOverrideToBucketOwner", "PauseReplication",
    "PutAccelerateConfiguration", "PutAccessGrantsInstanceResourcePolicy",
    "PutAccessPointConfigurationForObjectLambda", "PutAccessPointPolicy", "PutAccessPointPolicyForObjectLambda",
    "PutAccessPointPublicAccessBlock", "PutAccountPublicAccessBlock", "PutAnalyticsConfiguration",
    "PutBucketAbac", "PutBucketAcl", "PutBucketCORS", "PutBucketLogging", "PutBucketNotification",
    "PutBucketObjectLockConfiguration", "PutBucketOwnershipControls", "PutBucketPolicy",
    "PutBucketPublicAccessBlock", "PutBucketRequestPayment", "PutBucketTagging", "PutBucketVersioning",
    "PutBucketWebsite", "PutEncryptionConfiguration", "PutIntelligentTieringConfiguration",
    "PutInventoryConfiguration", "PutJobTagging", "PutLifecycleConfiguration", "PutMetricsConfiguration",
    "PutMultiRegionAccessPointPolicy", "PutObject", "PutObjectAcl", "PutObjectLegalHold", "PutObjectRetention",
    "PutObjectTagging", "PutObjectVersionAcl", "PutObjectVersionTagging", "PutReplicationConfiguration",
    "PutStorageLensConfiguration", "PutStorageLensConfigurationTagging", "ReplicateDelete", "ReplicateObject",
    "ReplicateTags", "RestoreObject", "SubmitMultiRegionAccessPointRoutes", "TagResource", "UntagResource",
    "UpdateAccessGrantsLocation", "UpdateBucketMetadataInventoryTableConfiguration",
    "UpdateBucketMetadataJournalTableConfiguration", "UpdateJobPriority", "UpdateJobStatus",
    "UpdateObjectEncryption", "UpdateStorageLensGroup",
];

/// Actions of IAM.
#[rustfmt::skip]
pub(super) const IAM_ACTIONS: &[&str] = &[
    "AcceptDelegationRequest", "AddClientIDToOpenIDConnectProvider", "AddRoleToInstanceProfile",
    "AddUserToGroup", "AssociateDelegationRequest", "AttachGroupPolicy", "AttachRolePolicy", "AttachUserPolicy",
    "ChangePassword", "CreateAccessKey", "CreateAccountAlias", "CreateDelegationRequest", "CreateGroup",
    "CreateInstanceProfile", "CreateLoginProfile", "CreateOpenIDConnectProvider", "CreatePolicy",
    "CreatePolicyVersion", "CreateRole", "CreateSAMLProvider", "CreateServiceLinkedRole",
    "CreateServiceSpecificCredential", "CreateUser", "CreateVirtualMFADevice", "DeactivateMFADevice",
    "DeleteAccessKey", "DeleteAccountAlias", "DeleteAccountPasswordPolicy", "DeleteCloudFrontPublicKey",
    "DeleteGroup", "DeleteGroupPolicy", "DeleteInstanceProfile", "DeleteLoginProfile",
    "DeleteOpenIDConnectProvider", "DeletePolicy", "DeletePolicyVersion", "DeleteRole",
    "DeleteRolePermissionsBoundary", "DeleteRolePolicy", "DeleteSAMLProvider", "DeleteSSHPublicKey",
    "DeleteServerCertificate", "DeleteServiceLinkedRole", "DeleteServiceSpecificCredential",
    "DeleteSigningCertificate", "DeleteUser", "DeleteUserPermissionsBoundary", "DeleteUserPolicy",
    "DeleteVirtualMFADevice", "DetachGroupPolicy", "DetachRolePolicy", "DetachUserPolicy",
    "DisableOrganizationsRootCredentialsManagement", "DisableOrganizationsRootSessions",
    "DisableOutboundWebIdentityFederation", "EnableMFADevice", "EnableOrganizationsRootCredentialsManagement",
    "EnableOrganizationsRootSessions", "EnableOutboundWebIdentityFederation", "GenerateCredentialReport",
    "GenerateOrganizationsAccessReport", "GenerateServiceLastAccessedDetails", "GetAccessKeyLastUsed",
    "GetAccountAuthorizationDetails", "GetAccountEmailAddress", "GetAccountName", "GetAccountPasswordPolicy",
    "GetAccountSummary", "GetCloudFrontPublicKey", "GetContextKeysForCustomPolicy",
    "GetContextKeysForPrincipalPolicy", "GetCredentialReport", "GetDelegationRequest", "GetGroup",
    "GetGroupPolicy", "GetHumanReadableSummary", "GetInstanceProfile", "GetLoginProfile", "GetMFADevice",
    "GetOpenIDConnectProvider", "GetOrganizationsAccessReport", "GetOutboundWebIdentityFederationInfo",
    "GetPolicy", "GetPolicyVersion", "GetRole", "GetRolePolicy", "GetSAMLProvider", "GetSSHPublicKey",
    "GetServerCertificate", "GetServiceLastAccessedDetails", "GetServiceLastAccessedDetailsWithEntities",
    "GetServiceLinkedRoleDeletionStatus", "GetUser", "GetUserPolicy", "ListAccessKeys", "ListAccountAliases",
    "ListAttachedGroupPolicies", "ListAttachedRolePolicies", "ListAttachedUserPolicies",
    "ListCloudFrontPublicKeys", "ListDelegationRequests", "ListEntitiesForPolicy", "ListGroupPolicies",
    "ListGroups", "ListGroupsForUser", "ListInstanceProfileTags", "ListInstanceProfiles",
    "ListInstanceProfilesForRole", "ListMFADeviceTags", "ListMFADevices", "ListOpenIDConnectProviderTags",
    "ListOpenIDConnectProviders", "ListOrganizationsFeatures", "ListPolicies",
    "ListPoliciesGrantingServiceAccess", "ListPolicyTags", "ListPolicyVersions", "ListRolePolicies",
    "ListRoleTags", "ListRoles", "ListSAMLProviderTags", "ListSAMLProviders", "ListSSHPublicKeys",
    "ListSTSRegionalEndpointsStatus", "ListServerCertificateTags", "ListServerCertificates",
    "ListServiceSpecificCredentials", "ListSigningCertificates", "ListUserPolicies", "ListUserTags",
    "ListUsers", "ListVirtualMFADevices", "PassRole", "PutGroupPolicy", "PutRolePermissionsBoundary",
    "PutRolePolicy", "PutUserPermissionsBoundary", "PutUserPolicy", "RejectDelegationRequest",
    "RemoveClientIDFromOpenIDConnectProvider", "RemoveRoleFromInstanceProfile", "RemoveUserFromGroup",
    "ResetServiceSpecificCredential", "ResyncMFADevice", "SendDelegationToken", "SetDefaultPolicyVersion",
    "SetSTSRegionalEndpointStatus", "SetSecurityTokenServicePreferences", "SimulateCustomPolicy",
    "SimulatePrincipalPolicy", "TagInstanceProfile", "TagMFADevice", "TagOpenIDConnectProvider", "TagPolicy",
    "TagRole", "TagSAMLProvider", "TagServerCertificate", "TagUser", "UntagInstanceProfile", "UntagMFADevice",
    "UntagOpenIDConnectProvider", "UntagPolicy", "UntagRole", "UntagSAMLProvider", "UntagServerCertificate",
    "UntagUser", "UpdateAccessKey", "UpdateAccountEmailAddress", "UpdateAccountName",
    "UpdateAccountPasswordPolicy", "UpdateAssumeRolePolicy", "UpdateCloudFrontPublicKey", "UpdateGroup",
    "UpdateLoginProfile", "UpdateOpenIDConnectProviderThumbprint", "UpdateRole", "UpdateRoleDescription",
    "UpdateSAMLProvider", "UpdateSSHPublicKey", "UpdateServerCertificate", "UpdateServiceSpecificCredential",
    "UpdateSigningCertificate", "UpdateUser", "UploadCloudFrontPublicKey", "UploadSSHPublicKey",
    "UploadServerCertificate", "UploadSigningCertificate",
];

/// Actions of STS.
#[rustfmt::skip]
pub(super) const STS_ACTIONS: &[&str] = &[
    "AssumeRole", "AssumeRoleWithSAML", "AssumeRoleWithWebIdentity", "AssumeRoot", "DecodeAuthorizationMessage",
    "GetAccessKeyInfo", "GetCallerIdentity", "GetDelegatedAccessToken", "GetFederationToken",
    "GetServiceBearerToken", "GetSessionToken", "GetWebIdentityToken", "SetContext", "SetSourceIdentity",
    "TagGetWebIdentityToken", "TagSession",
];

/// Actions of KMS. Of these S3 asks for `Decrypt` and `GenerateDataKey`.
#[rustfmt::skip]
pub(super) const KMS_ACTIONS: &[&str] = &[
    "CancelKeyDeletion", "ConnectCustomKeyStore", "CreateAlias", "CreateCustomKeyStore", "CreateGrant",
    "CreateKey", "Decrypt", "DeleteAlias", "DeleteCustomKeyStore", "DeleteImportedKeyMaterial",
    "DeriveSharedSecret", "DescribeCustomKeyStores", "DescribeKey", "DisableKey", "DisableKeyRotation",
    "DisconnectCustomKeyStore", "EnableKey", "EnableKeyRotation", "Encrypt", "GenerateDataKey",
    "GenerateDataKeyPair", "GenerateDataKeyPairWithoutPlaintext", "GenerateDataKeyWithoutPlaintext",
    "GenerateMac", "GenerateRandom", "GetKeyPolicy", "GetKeyRotationStatus", "GetParametersForImport",
    "GetPublicKey", "ImportKeyMaterial", "ListAliases", "ListGrants", "ListKeyPolicies", "ListKeyRotations",
    "ListKeys", "ListResourceTags", "ListRetirableGrants", "PutKeyPolicy", "ReEncryptFrom", "ReEncryptTo",
    "ReplicateKey", "RetireGrant", "RevokeGrant", "RotateKeyOnDemand", "ScheduleKeyDeletion", "Sign",
    "SynchronizeMultiRegionKey", "TagResource", "UntagResource", "UpdateAlias", "UpdateCustomKeyStore",
    "UpdateKeyDescription", "UpdatePrimaryRegion", "Verify", "VerifyMac",
];

/// Global condition keys, in lower case.
#[rustfmt::skip]
pub(super) const AWS_KEYS: &[&str] = &[
    "assumedroot", "calledvia", "calledviafirst", "calledvialast", "chatbotsourcearn", "currenttime",
    "ec2instancesourceprivateipv4", "ec2instancesourcevpc", "epochtime", "federatedprovider",
    "multifactorauthage", "multifactorauthpresent", "principalaccount", "principalarn", "principalisawsservice",
    "principalorgid", "principalorgpaths", "principalservicename", "principalservicenameslist", "principaltype",
    "referer", "requestedregion", "resourceaccount", "resourceorgid", "resourceorgpaths", "securetransport",
    "sourceaccount", "sourcearn", "sourceidentity", "sourceip", "sourceorgid", "sourceorgpaths", "sourceowner",
    "sourcevpc", "sourcevpcarn", "sourcevpce", "tagkeys", "tokenissuetime", "useragent", "userid", "username",
    "viaawsservice", "vpceaccount", "vpceorgid", "vpceorgpaths", "vpcsourceip",
];

/// Condition keys of S3, in lower case.
#[rustfmt::skip]
pub(super) const S3_KEYS: &[&str] = &[
    "accessgrantscope", "accessgrantsinstancearn", "accessgrantslocationscope", "accesspointnetworkorigin",
    "authtype", "dataaccesspointaccount", "dataaccesspointarn", "delimiter", "destinationregion",
    "existingjoboperation", "existingjobpriority", "if-match", "if-none-match",
    "inventoryaccessibleoptionalfields", "isreplicationpauserequest", "jobsuspendedcause", "locationconstraint",
    "max-keys", "object-lock-legal-hold", "object-lock-mode", "object-lock-remaining-retention-days",
    "object-lock-retain-until-date", "objectcreationoperation", "prefix", "requestjoboperation",
    "requestjobpriority", "requestobjecttagkeys", "resourceaccount", "signatureage", "signatureversion",
    "tlsversion", "versionid", "x-amz-acl", "x-amz-bucket-namespace", "x-amz-content-sha256",
    "x-amz-copy-source", "x-amz-grant-full-control", "x-amz-grant-read", "x-amz-grant-read-acp",
    "x-amz-grant-write", "x-amz-grant-write-acp", "x-amz-metadata-directive", "x-amz-object-ownership",
    "x-amz-server-side-encryption", "x-amz-server-side-encryption-aws-kms-key-id",
    "x-amz-server-side-encryption-customer-algorithm", "x-amz-storage-class", "x-amz-website-redirect-location",
];

/// Condition keys of IAM, in lower case.
#[rustfmt::skip]
pub(super) const IAM_KEYS: &[&str] = &[
    "associatedresourcearn", "awsservicename", "delegationduration", "delegationrequestowner",
    "fido-certification", "fido-fips-140-2-certification", "fido-fips-140-3-certification",
    "notificationchannel", "organizationspolicyid", "passedtoservice", "permissionsboundary", "policyarn",
    "registersecuritykey", "servicespecificcredentialagedays", "servicespecificcredentialservicename",
    "templatearn",
];

/// Condition keys of STS, in lower case.
#[rustfmt::skip]
pub(super) const STS_KEYS: &[&str] = &[
    "awsservicename", "durationseconds", "externalid", "identitytokenaudience", "requestcontextproviders",
    "rolesessionname", "signingalgorithm", "sourceidentity", "taskpolicyarn", "transitivetagkeys",
];

/// Condition keys of KMS that uses of keys have here, in lower case; `encryptioncontext:` and a name is one, too. AWS has
/// more.
pub(super) const KMS_KEYS: &[&str] = &["calleraccount", "encryptioncontextkeys", "viaservice"];

/// Condition keys of SAML, in lower case.
#[rustfmt::skip]
pub(super) const SAML_KEYS: &[&str] = &[
    "aud", "cn", "commonname", "doc", "eduorghomepageuri", "eduorgidentityauthnpolicyuri", "eduorglegalname",
    "eduorgsuperioruri", "eduorgwhitepagesuri", "edupersonaffiliation", "edupersonassurance",
    "edupersonentitlement", "edupersonnickname", "edupersonorgdn", "edupersonorgunitdn",
    "edupersonprimaryaffiliation", "edupersonprimaryorgunitdn", "edupersonprincipalname",
    "edupersonscopedaffiliation", "edupersontargetedid", "givenname", "iss", "mail", "name", "namequalifier",
    "organizationstatus", "primarygroupsid", "sub", "sub_type", "surname", "uid", "x500uniqueidentifier",
];

/// Services of AWS that are not here, as actions name them.
#[rustfmt::skip]
pub(super) const OTHER_SERVICES: &[&str] = &[
    "a2c", "a4b", "access-analyzer", "account", "acm", "acm-pca", "aco-automation", "action-recommendations",
    "activate", "aidevops", "aiops", "airflow", "airflow-serverless", "amplify", "amplifybackend",
    "amplifyuibuilder", "aoss", "apigateway", "app-integrations", "appconfig", "appfabric", "appflow",
    "application-autoscaling", "application-signals", "application-transformation", "applicationinsights",
    "appmesh", "appmesh-preview", "apprunner", "appstream", "appstudio", "appsync", "apptest", "aps",
    "arc-region-switch", "arc-zonal-shift", "arsenal", "artifact", "athena", "auditmanager", "autoscaling",
    "autoscaling-plans", "aws-marketplace", "aws-marketplace-management", "aws-mcp", "aws-portal",
    "awsconnector", "b2bi", "backup", "backup-gateway", "backup-search", "backup-storage", "batch",
    "bcm-dashboards", "bcm-data-exports", "bcm-pricing-calculator", "bcm-recommended-actions", "bedrock",
    "bedrock-agentcore", "bedrock-mantle", "billing", "billingconductor", "braket", "budgets", "bugbust",
    "cases", "cassandra", "ce", "chatbot", "chime", "cleanrooms", "cleanrooms-ml", "cloud9", "clouddirectory",
    "cloudformation", "cloudfront", "cloudfront-keyvaluestore", "cloudhsm", "cloudsearch", "cloudshell",
    "cloudtrail", "cloudtrail-data", "cloudwatch", "codeartifact", "codebuild", "codecatalyst", "codecommit",
    "codeconnections", "codedeploy", "codedeploy-commands-secure", "codeguru", "codeguru-profiler",
    "codeguru-reviewer", "codeguru-security", "codepipeline", "codestar", "codestar-connections",
    "codestar-notifications", "codewhisperer", "cognito-identity", "cognito-idp", "cognito-sync", "comprehend",
    "comprehendmedical", "compute-optimizer", "config", "connect", "connect-campaigns", "consoleapp",
    "consolidatedbilling", "controlcatalog", "controltower", "cost-optimization-hub", "cur",
    "customer-verification", "databrew", "dataexchange", "datapipeline", "datasync", "datazone", "dax", "dbqms",
    "deadline", "detective", "devicefarm", "devops-guru", "directconnect", "discovery", "dlm", "dms",
    "docdb-elastic", "drs", "ds", "ds-data", "dsql", "dynamodb", "ebs", "ec2", "ec2-instance-connect",
    "ec2messages", "ecr", "ecr-public", "ecs", "ecs-mcp", "eks", "eks-auth", "eks-mcp", "elasticache",
    "elasticbeanstalk", "elasticfilesystem", "elasticloadbalancing", "elasticmapreduce", "elastictranscoder",
    "elemental-activations", "elemental-appliances-software", "elemental-inference", "elemental-support-cases",
    "elemental-support-content", "emr-containers", "emr-serverless", "entityresolution", "es", "events",
    "evidently", "evs", "execute-api", "finspace", "finspace-api", "firehose", "fis", "fms", "forecast",
    "frauddetector", "freertos", "freetier", "fsx", "gamelift", "gameliftstreams", "geo", "geo-maps",
    "geo-places", "geo-routes", "glacier", "globalaccelerator", "glue", "grafana", "greengrass",
    "groundstation", "groundtruthlabeling", "guardduty", "health", "health-agent", "healthlake", "honeycode",
    "identity-sync", "identitystore", "identitystore-auth", "imagebuilder", "importexport", "inspector",
    "inspector-scan", "inspector2", "inspector2-telemetry", "interconnect", "internetmonitor", "invoicing",
    "iot", "iot-device-tester", "iotanalytics", "iotdeviceadvisor", "iotevents", "iotfleethub", "iotfleetwise",
    "iotjobsdata", "iotmanagedintegrations", "iotsitewise", "iottwinmaker", "iotwireless", "iq",
    "iq-permission", "ivs", "ivschat", "kafka", "kafka-cluster", "kafkaconnect", "kendra", "kendra-ranking",
    "kinesis", "kinesisanalytics", "kinesisvideo", "lakeformation", "lambda", "launchwizard", "lex",
    "license-manager", "license-manager-linux-subscriptions", "license-manager-user-subscriptions", "lightsail",
    "logs", "lookoutequipment", "lookoutmetrics", "lookoutvision", "m2", "machinelearning", "macie2",
    "managedblockchain", "managedblockchain-query", "mapcredits", "marketplacecommerceanalytics",
    "mechanicalturk", "mediaconnect", "mediaconvert", "mediaimport", "medialive", "mediapackage",
    "mediapackage-vod", "mediapackagev2", "mediastore", "mediatailor", "medical-imaging", "memorydb", "mgh",
    "mgn", "migrationhub-orchestrator", "migrationhub-strategy", "mobileanalytics", "mobiletargeting",
    "monitron", "mpa", "mq", "neptune-db", "neptune-graph", "network-firewall", "network-security-director",
    "networkflowmonitor", "networkmanager", "networkmanager-chat", "networkmonitor", "nimble", "notifications",
    "notifications-contacts", "nova-act", "oam", "observabilityadmin", "odb", "omics", "one", "opensearch",
    "opsworks", "opsworks-cm", "organizations", "osis", "outposts", "panorama", "partnercentral",
    "partnercentral-account-management", "payment-cryptography", "payments", "pca-connector-ad",
    "pca-connector-scep", "pcs", "personalize", "pi", "pipes", "polly", "pricing", "pricingplanmanager",
    "private-networks", "profile", "proton", "purchase-orders", "q", "qapps", "qbusiness", "qdeveloper", "qldb",
    "quicksight", "ram", "rbin", "rds", "rds-data", "rds-db", "redshift", "redshift-data",
    "redshift-serverless", "refactor-spaces", "rekognition", "repostspace", "resiliencehub",
    "resource-explorer", "resource-explorer-2", "resource-groups", "rhelkb", "robomaker", "rolesanywhere",
    "route53", "route53-recovery-cluster", "route53-recovery-control-config", "route53-recovery-readiness",
    "route53domains", "route53globalresolver", "route53profiles", "route53resolver", "rtbfabric", "rum",
    "s3-object-lambda", "s3-outposts", "s3express", "s3tables", "s3vectors", "sagemaker",
    "sagemaker-data-science-assistant", "sagemaker-geospatial", "sagemaker-mlflow",
    "sagemaker-unified-studio-mcp", "savingsplans", "scheduler", "schemas", "scn", "sdb", "secretsmanager",
    "security-ir", "securityagent", "securityhub", "securitylake", "serverlessrepo", "servicecatalog",
    "servicediscovery", "serviceextract", "servicequotas", "ses", "shield", "signer", "signin",
    "simspaceweaver", "sms", "sms-voice", "snow-device-management", "snowball", "sns", "social-messaging",
    "sqlworkbench", "sqs", "ssm", "ssm-contacts", "ssm-guiconnect", "ssm-incidents", "ssm-quicksetup",
    "ssm-sap", "ssmmessages", "sso", "sso-directory", "sso-oauth", "states", "storagegateway", "support",
    "support-console", "supportapp", "supportplans", "sustainability", "swf", "synthetics", "tag", "tax",
    "textract", "thinclient", "timestream", "timestream-influxdb", "tiros", "tnb", "transcribe", "transfer",
    "transform", "transform-custom", "translate", "trustedadvisor", "ts", "user-subscriptions", "uxc",
    "vendor-insights", "verified-access", "verifiedpermissions", "voiceid", "vpc-lattice", "vpc-lattice-svcs",
    "vpce", "waf", "waf-regional", "wafv2", "wam", "wellarchitected", "wickr", "wisdom", "workdocs", "worklink",
    "workmail", "workmailmessageflow", "workspaces", "workspaces-instances", "workspaces-web", "xray",
];
