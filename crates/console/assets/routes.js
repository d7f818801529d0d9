// Addresses and their pages.

import * as accounts from "./pages/accounts.js";
import * as account from "./pages/account.js";
import * as bucket from "./pages/bucket.js";
import * as buckets from "./pages/buckets.js";
import * as events from "./pages/events.js";
import * as group from "./pages/group.js";
import * as hosts from "./pages/hosts.js";
import * as image from "./pages/image.js";
import * as images from "./pages/images.js";
import * as keys from "./pages/keys.js";
import * as locks from "./pages/locks.js";
import * as osd from "./pages/osd.js";
import * as osds from "./pages/osds.js";
import * as overview from "./pages/overview.js";
import * as ownPolicy from "./pages/own_policy.js";
import * as performance from "./pages/performance.js";
import * as pg from "./pages/pg.js";
import * as pgs from "./pages/pgs.js";
import * as policy from "./pages/policy.js";
import * as pools from "./pages/pools.js";
import * as role from "./pages/role.js";
import * as settings from "./pages/settings.js";
import * as slowOperations from "./pages/slow_operations.js";
import * as trash from "./pages/trash.js";
import * as user from "./pages/user.js";

export const ROUTES = [
    { path: "overview", page: overview },
    { path: "hosts", page: hosts },
    { path: "osds", page: osds },
    { path: "osds/:osd", page: osd },
    { path: "pools", page: pools },
    { path: "pgs", page: pgs },
    { path: "pgs/:pg", page: pg },
    { path: "performance", page: performance },
    { path: "images", page: images },
    { path: "images/:image", page: image },
    { path: "locks", page: locks },
    { path: "trash", page: trash },
    { path: "buckets", page: buckets },
    { path: "buckets/:bucket", page: bucket },
    { path: "accounts", page: accounts },
    { path: "accounts/:account", page: account },
    { path: "accounts/:account/users/:user", page: user },
    { path: "accounts/:account/groups/:group", page: group },
    { path: "accounts/:account/roles/:role", page: role },
    { path: "accounts/:account/users/:user/policies/:policy", page: ownPolicy },
    { path: "accounts/:account/groups/:group/policies/:policy", page: ownPolicy },
    { path: "accounts/:account/roles/:role/policies/:policy", page: ownPolicy },
    { path: "accounts/:account/policies/:policy", page: policy },
    { path: "keys", page: keys },
    { path: "events", page: events },
    { path: "slow-operations", page: slowOperations },
    { path: "settings", page: settings },
];
