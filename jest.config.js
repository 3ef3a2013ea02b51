const jestJupyterLab = require('@jupyterlab/testutils/lib/jest-config');

// Packages of the JupyterLab family are published as ES modules.
const esModules = [
  '@codemirror',
  '@jupyter/ydoc',
  '@jupyterlab/',
  'lib0',
  'nanoid',
  'vscode-ws-jsonrpc',
  'y-protocols',
  'y-websocket',
  'yjs',
  '@microsoft',
  '@jupyter/web-components',
  '@jupyter/react-components',
  'exenv-es6',
  '@rjsf'
].join('|');

const base = jestJupyterLab(__dirname);

module.exports = {
  ...base,
  automock: false,
  moduleNameMapper: {
    ...base.moduleNameMapper,
    '^jupyter_hyperpod$': '<rootDir>/src/index.ts'
  },
  coverageReporters: ['text-summary'],
  modulePathIgnorePatterns: [
    '<rootDir>/labextension/dist/',
    '<rootDir>/lib/',
    '<rootDir>/.venv/'
  ],
  reporters: ['default'],
  testRegex: '/src/(.*/)?__tests__/.*\\.spec\\.tsx?$',
  testPathIgnorePatterns: ['/node_modules/', '/.venv/', '/ui-tests/'],
  transformIgnorePatterns: [`/node_modules/(?!${esModules}).+`]
};
