// Policies that are attached to a user, group or role.

import { may } from "./session.js";
import { table } from "./table.js";

export function attachedTable(policies, { name, actions }) {
    return table({
        id: "attached",
        caption: "Attached policies",
        rows: policies,
        key: (policy) => policy.PolicyArn,
        empty: "There are none.",
        columns: [
            { label: "Policy", value: (policy) => policy.PolicyName, cell: (policy) => name(policy.PolicyName) },
            { label: "ARN", value: (policy) => policy.PolicyArn },
            may("detachPolicy") ? { label: "Actions", actions: true, cell: (policy) => actions(policy.PolicyName) } : null,
        ],
    });
}
