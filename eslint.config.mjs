import jupyter from '@jupyter/eslint-plugin';
import prettier from 'eslint-config-prettier';
import hooks from 'eslint-plugin-react-hooks';
import globals from 'globals';
import typescript from 'typescript-eslint';

export default typescript.config(
  {
    ignores: [
      '.venv/**',
      'lib/**',
      'labextension/dist/**',
      '**/node_modules/**',
      'test-output/**',
      'ui-tests/test-results/**'
    ]
  },
  ...typescript.configs.recommended,
  { plugins: { jupyter } },
  ...jupyter.configs.recommended,
  {
    files: ['src/**/*.{ts,tsx}', 'docs/example-extension/**/*.ts'],
    plugins: { 'react-hooks': hooks },
    languageOptions: {
      globals: globals.browser,
      parserOptions: { project: './tsconfig.json' }
    },
    rules: {
      ...hooks.configs.recommended.rules,
      '@typescript-eslint/no-explicit-any': 'off',
      '@typescript-eslint/no-namespace': 'off',
      '@typescript-eslint/no-floating-promises': [
        'error',
        { ignoreVoid: true }
      ],
      curly: 'error',
      eqeqeq: 'error',
      'no-console': 'error',
      // Panel, renderer and status item are there from the start; the dashboard alone comes later.
      'jupyter/prefer-lazy-imports': 'off',
      'no-restricted-globals': [
        'error',
        { name: 'fetch', message: 'Only src/api.ts makes requests.' },
        { name: 'WebSocket', message: 'Only src/api.ts makes requests.' }
      ],
      'prefer-arrow-callback': ['error', { allowNamedFunctions: true }]
    }
  },
  {
    files: ['src/api.ts', 'src/**/__tests__/**'],
    rules: { 'no-restricted-globals': 'off' }
  },
  {
    files: ['src/**/__tests__/**', 'docs/example-extension/**'],
    rules: {
      'no-console': 'off',
      'jupyter/no-dynamic-translation': 'off',
      'jupyter/no-untranslated-string': 'off'
    }
  },
  {
    files: ['*.js'],
    languageOptions: { globals: globals.node },
    rules: { '@typescript-eslint/no-require-imports': 'off' }
  },
  {
    files: ['labextension/**/*.js', 'ui-tests/**/*.{ts,js}'],
    languageOptions: { globals: { ...globals.browser, ...globals.node } },
    rules: { '@typescript-eslint/no-explicit-any': 'off' }
  },
  prettier
);
