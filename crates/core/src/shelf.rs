//! Cells and scopes in two maps: the smallest thing that `turn` runs on, for tests.

use std::collections::HashMap;

use crate::ask::{CellId, ScopeId};
use crate::limit::Cell;
use crate::scope::Scope;
use crate::turn::Cells;

#[derive(Default)]
pub(crate) struct Shelf {
    pub(crate) cells: HashMap<CellId, Cell>,
    pub(crate) scopes: HashMap<ScopeId, Scope>,
}

impl Cells for Shelf {
    fn cell(&mut self, id: CellId) -> &mut Cell {
        self.cells.entry(id).or_default()
    }

    fn scope(&mut self, id: ScopeId) -> &mut Scope {
        self.scopes.entry(id).or_default()
    }
}
