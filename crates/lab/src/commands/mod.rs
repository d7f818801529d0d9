//! The commands of the laboratory: `atoll bench run`, `guard`, `model`, `report`, `compare`, and `atoll
//! sim`, each with its arguments.

pub mod compare;
pub mod guard;
pub mod model;
pub mod report;
pub mod run;
pub mod sim;
