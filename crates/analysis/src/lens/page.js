'use strict';
(() => {
  const { table, scales } = JSON.parse(document.getElementById('data').textContent);
  const cells = table.rows.flatMap((row) => row.cells);
  const finalRow = table.rows.at(-1);

  // ---- Measures for coloring cells. A strong color always means: closer to the final prediction. ----
  const largest = (values) => values.reduce((a, b) => Math.max(a, b ?? 0), 0);
  const maxEntropy = largest(cells.map((cell) => cell.entropy_bits)) || 1;
  const maxKl = largest(cells.map((cell) => cell.kl_to_final_bits)) || 1;
  const maxRank = Math.max(2, largest(cells.map((cell) => cell.rank_of_final)));
  const percent = (p) => (p == null ? '–' : p > 0 && p < 0.001 ? '<0.1 %' : `${(100 * p).toFixed(p < 0.1 ? 1 : 0)} %`);
  const bits = (b) => (b == null ? '–' : `${b.toFixed(2)} bits`);
  const measures = [
    { name: 'Probability', ends: ['0 %', '100 %'], strength: (cell) => cell.guesses[0]?.probability },
    { name: 'Entropy', ends: [bits(maxEntropy), 'certain'], strength: (cell) => cell.entropy_bits == null ? null : 1 - cell.entropy_bits / maxEntropy },
    { name: 'KL to final', ends: [bits(maxKl), 'as final'], strength: (cell) => cell.kl_to_final_bits == null ? null : 1 - cell.kl_to_final_bits / maxKl },
    // Ranks span the whole vocabulary, so the scale is logarithmic.
    { name: 'Rank of final', ends: [`rank ${maxRank}`, 'first'], strength: (cell) => 1 - Math.log(Math.max(1, cell.rank_of_final)) / Math.log(maxRank) },
  ];
  let measure = measures[0];
  let pinned = null;

  // ---- Elements are built with text nodes, never from markup. ----
  function make(tag, attributes = {}, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.append(...children);
    return element;
  }

  function drawTable() {
    const heads = table.prompt_tokens.map((token, i) =>
      make('th', { scope: 'col', title: token }, make('small', {}, String(i)), make('span', {}, token)));
    const rows = table.rows.map((row, r) => make('tr', {},
      make('th', { scope: 'row', title: row.site }, row.label),
      ...table.prompt_tokens.map((_, c) => drawCell(row, r, c))));
    const corner = make('th', {}, make('span', { class: 'unseen' }, 'Layer'));
    return make('table', { role: 'grid', 'aria-label': 'Top prediction of the next token, by layer and prompt token' },
      make('thead', {}, make('tr', {}, corner, ...heads)), make('tbody', {}, ...rows));
  }

  function drawCell(row, r, c) {
    const cell = row.cells[c];
    const best = cell?.guesses[0];
    if (!best) return make('td', { 'aria-label': 'not read', tabindex: -1 });
    const guesses = cell.guesses.map((guess) => `${guess.token} ${percent(guess.probability)}`).join(', ');
    const agrees = row !== finalRow && cell.rank_of_final === 1;
    return make('td', {
      tabindex: -1, class: agrees ? 'agrees' : '', 'data-row': r, 'data-column': c,
      'aria-label': `${row.label}, after ${table.prompt_tokens[c]}: ${guesses}${agrees ? '; same as the final row' : ''}`,
    }, make('span', {}, best.token));
  }

  function paint() {
    const scale = scales[document.documentElement.dataset.theme];
    for (const td of document.querySelectorAll('td[data-row]')) {
      const strength = measure.strength(table.rows[td.dataset.row].cells[td.dataset.column]);
      const step = Math.round(Math.min(1, Math.max(0, strength ?? 0)) * (scale.length - 1));
      [td.firstChild.style.background, td.firstChild.style.color] = scale[step];
    }
    const [low, bar, high] = document.getElementById('legend').children;
    [low.textContent, high.textContent] = measure.ends;
    bar.style.background = `linear-gradient(90deg, ${scale.map(([background]) => background).join(', ')})`;
  }

  // ---- The panel that shows one cell. ----
  function show(td) {
    const [r, c] = [Number(td.dataset.row), Number(td.dataset.column)];
    const [row, cell, token] = [table.rows[r], table.rows[r].cells[c], table.prompt_tokens[c]];
    const answer = finalRow.cells[c]?.guesses[0];
    const before = table.prompt_tokens.slice(Math.max(0, c - 6), c).join('');
    const facts = [['Entropy', bits(cell.entropy_bits)], ['KL to final', bits(cell.kl_to_final_bits)]];
    if (answer) facts.push(['Final prediction', answer.token], ['its rank here', String(cell.rank_of_final)]);
    if (c + 1 < table.prompt_tokens.length) facts.push(['Next prompt token', table.prompt_tokens[c + 1]]);
    document.getElementById('detail').replaceChildren(
      make('h2', {}, make('span', { title: row.site }, row.label), make('small', {}, td === pinned ? 'pinned' : '')),
      make('p', { class: 'context' }, (c > 6 ? '…' : '') + before, make('b', {}, token), ' → ?'),
      make('ol', {}, ...cell.guesses.map((guess) => make('li', { class: guess.id === answer?.id ? 'final' : '', title: `token ${guess.id}` },
        make('span', {}, guess.token), make('output', {}, percent(guess.probability)),
        make('i', { style: `--part: ${100 * Math.min(1, Math.max(0, guess.probability ?? 0))}%` })))),
      make('dl', {}, ...facts.flatMap(([name, value]) => [make('dt', {}, name), make('dd', {}, value)])));
    for (const th of document.querySelectorAll('th.here')) th.classList.remove('here');
    document.querySelector('td.shown')?.classList.remove('shown');
    td.classList.add('shown');
    td.parentNode.firstChild.classList.add('here');
    document.querySelector('thead tr').children[c + 1].classList.add('here');
  }

  function pin(td) {
    pinned?.classList.remove('pinned');
    pinned?.removeAttribute('aria-selected');
    pinned = td === pinned ? null : td;
    pinned?.classList.add('pinned');
    pinned?.setAttribute('aria-selected', 'true');
    if (td) show(td);
  }

  // ---- One cell at a time is in the tab order; arrow keys move the focus. ----
  function focusCell(td) {
    if (!td || td.tagName !== 'TD') return;
    for (const other of document.querySelectorAll('td[tabindex="0"]')) other.tabIndex = -1;
    td.tabIndex = 0;
    td.focus({ preventScroll: true });
    td.scrollIntoView({ block: 'nearest', inline: 'nearest' });
  }

  function listen(grid) {
    const cellOf = (event) => event.target.closest('td[data-row]');
    const preview = (event) => { const td = cellOf(event); if (td && !pinned) show(td); };
    grid.addEventListener('pointerover', preview);
    grid.addEventListener('focusin', preview);
    grid.addEventListener('click', (event) => { const td = cellOf(event); if (td) { focusCell(td); pin(td); } });
    grid.addEventListener('keydown', (event) => {
      const td = event.target.closest('td');
      if (!td || event.ctrlKey || event.metaKey || event.altKey) return;
      const inRow = (tr) => tr?.children[td.cellIndex];
      const moves = {
        ArrowLeft: () => td.previousElementSibling, ArrowRight: () => td.nextElementSibling,
        ArrowUp: () => inRow(td.parentNode.previousElementSibling), ArrowDown: () => inRow(td.parentNode.nextElementSibling),
        Home: () => td.parentNode.children[1], End: () => td.parentNode.lastElementChild,
        PageUp: () => inRow(td.closest('tbody').firstElementChild), PageDown: () => inRow(td.closest('tbody').lastElementChild),
      };
      if (moves[event.key]) focusCell(moves[event.key]());
      else if ((event.key === 'Enter' || event.key === ' ') && td.dataset.row) pin(td);
      else return;
      event.preventDefault();
    });
    document.addEventListener('keydown', (event) => {
      if (event.key !== 'Escape' || !pinned) return;
      pin(pinned);
      const focused = document.activeElement.closest('td[data-row]');
      if (focused) show(focused);
    });
  }

  // ---- The page around the table. ----
  function setTheme(theme) {
    document.documentElement.dataset.theme = theme;
    document.getElementById('theme').textContent = theme === 'dark' ? 'Light' : 'Dark';
    document.getElementById('theme').setAttribute('aria-label', `Switch to ${theme === 'dark' ? 'light' : 'dark'} colors`);
    paint();
  }

  function drawMeasures() {
    for (const [index, each] of measures.entries()) {
      const input = make('input', { type: 'radio', name: 'measure' });
      input.checked = index === 0;
      input.addEventListener('change', () => { measure = each; paint(); });
      document.getElementById('measures').append(make('label', {}, input, each.name));
    }
  }

  document.title = `Logit lens · ${table.model}`;
  document.getElementById('model').textContent = table.model;
  const prefersDark = matchMedia('(prefers-color-scheme: dark)');
  const preferred = () => (prefersDark.matches ? 'dark' : 'light');
  prefersDark.addEventListener('change', () => setTheme(preferred()));
  document.getElementById('theme').addEventListener('click', () =>
    setTheme(document.documentElement.dataset.theme === 'dark' ? 'light' : 'dark'));
  drawMeasures();

  const map = document.getElementById('map');
  if (table.rows.length && table.prompt_tokens.length) {
    const grid = drawTable();
    map.replaceChildren(grid);
    listen(grid);
    // Start with the last token: how did the model arrive at its next token?
    const last = [...grid.querySelectorAll('tbody tr:last-child td[data-row]')].at(-1);
    if (last) { last.tabIndex = 0; show(last); map.scrollLeft = map.scrollWidth; }
  } else {
    map.replaceChildren(make('p', {}, 'Nothing to show: the prompt has no tokens, or no layer was read.'));
    for (const id of ['key', 'measures', 'detail']) document.getElementById(id).hidden = true;
  }
  setTheme(preferred());
})();
