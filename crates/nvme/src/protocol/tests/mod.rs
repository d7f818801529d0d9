mod authentication;
mod controller;
mod fused;
mod host;
mod properties;
mod queue;
